"""Models and their versions: registration, commitment to the rows, reading."""
