"""The numbered revisions of a party's register of exposure."""
