"""Finds out, here and in a minute, whether a job resumes exactly, before any quota is spent.

`course` trains a few steps several times: without interruption, then stopped, killed and resumed. `witness`
runs inside these sessions and notes what each step starts from. `comparing` and `tensors` judge what they
left. The words: a *leg* is one session of the rehearsal; a *trace* is what `witness` noted in it.
"""
