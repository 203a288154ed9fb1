"""MinAtar's five games as worlds of tensors: Breakout, Asterix, Freeway, Seaquest and Space Invaders.

Written anew from the rules; MinAtar itself only plays the episodes that the tests compare with.
"""
