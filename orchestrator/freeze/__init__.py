"""Makes the parts of a job immutable at submit, and lists everything that will leave this machine.

bundle.py         the source, as one content-addressed archive
ignoring.py       which files of the source stay here, by which rule
left_out.py       what is said of them, also when a training misses one
images.py         the folders that an image is built from
inputs.py         data that the job reads, pinned by hash
requirements.py   package versions, locked at submit
requirement_file.py reads a requirements file as pip does, and refuses what is none
leaving.py        checks and lists everything that will leave this machine
"""
