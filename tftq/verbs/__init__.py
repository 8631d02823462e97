"""The verbs of the command line, a module each: `add_arguments` fills its parser, `execute` does the work."""
