"""Speed against the wire's limit and against peers; run by `parley bench NAME`."""
