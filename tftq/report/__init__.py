"""Report what a run achieved and what it cost: report.html and the tables on the console."""
