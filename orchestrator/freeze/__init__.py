"""What a submit makes immutable, and the list of all that will leave this machine.

bundle.py         the source, as one content-addressed archive
images.py         the folders that an image is built from
inputs.py         data the job reads, pinned by hash
requirements.py   versions of packages, locked when submitted
leaving.py        all that will leave this machine, before it does
"""
