"""The 225 scale-free features of bars: 214 observed ones and 11 of the calendar."""
