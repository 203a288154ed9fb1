"""The commands of the bench; those on single runs are in `weft.commands.app`."""
