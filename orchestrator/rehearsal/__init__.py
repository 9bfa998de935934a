"""Finds out, here and in a minute, whether a job resumes exactly, before any quota is spent.

`course` trains a few steps several times: without interruption, then stopped, killed and resumed. `legs` runs
these as real sessions. `witness` runs inside them and notes what each step starts from. `comparing` lays
these notes over each other, `contents` compares checkpoints, and `judging` says what all of it means. The
words: a *leg* is one session of the rehearsal; a *trace* is what `witness` noted in it.
"""
