"""The user whose first hour this is."""

from tests.end_to_end.conftest import new_user as new_user
from tests.end_to_end.conftest import user as user
