"""The version that both ends of a wire must share."""

from importlib.metadata import version

VERSION = version("parley-fl")
