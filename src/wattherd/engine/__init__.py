"""The decision core: state, guard and the one way in. Pure: no clock, no file, no chance."""
