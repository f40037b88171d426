"""What can be wrong with a problem of one's own; apart from its functions, since these need torch."""


class ProblemError(ValueError):
    """A problem of one's own cannot be used as it is."""


class ProblemImportRefused(ProblemError):
    """A problem would come from code that this host has not allowed, or that is not there."""


class ProblemMisshapen(ProblemError):
    """A function takes other arguments than it is given, or returns something else than is asked of it."""


class ProblemNotFinite(ArithmeticError):
    """A function, or a derivative of it, has become infinite or undefined."""
