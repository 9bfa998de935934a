"""Writes a first job file for a script or notebook that somebody has.

`script` reads the code without running it, and notes what a job needs to know. `paths` turns the expressions
that name files into patterns. `words` writes the job file, with comments that say what was found and what is
missing. Must never import or run the user's code.
"""
