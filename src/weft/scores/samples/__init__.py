"""Two samples beside each other: how far apart are the laws that drew them, and could it be chance?"""
