"""Where the rooms meet: the only place that wires readers, core, shells and writers together."""
