"""Problems that come with Parley, in the form that one's own have (`parley.numerics.own_problem`)."""
