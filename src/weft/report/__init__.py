"""What people look at: a run's curves in the terminal and as a picture, and pages of runs, studies and claims."""
