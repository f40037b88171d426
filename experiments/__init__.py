"""One module per table or figure of the papers; run by `parley reproduce NAME`."""
