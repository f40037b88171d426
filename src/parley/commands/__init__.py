"""The subcommands of `parley`, one module for each subject."""
