import pytest

from recipes.ablations.model import MODEL_TYPE, register
from training.model.architectures import ARCHITECTURES


@pytest.fixture(scope="package", autouse=True)
def family():
    """Make the family of the ablations known, and forget it after these tests."""
    register()
    yield
    del ARCHITECTURES[MODEL_TYPE]
