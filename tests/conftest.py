"""The plugins of the whole suite; fixtures stand beside the tests that use them."""

pytest_plugins = [
    "tests.no_production",
    "tests.no_skips",
    "tests.postgresql",
    "tests.docker_engine",
    "tests.docker_images",
    "tests.docker_gpus",
    "tests.longest_first",
]
