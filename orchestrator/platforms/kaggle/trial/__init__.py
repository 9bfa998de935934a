"""A trial of the real service: a few small sessions that check what we could only assume about Kaggle.

`course` runs them with the platform's own verbs. `witness` hears each request and answer on the way.
`evidence` decides from that whether one of the `assumptions` holds. `training` is the job of the sessions.
"""
