import pytest

from tests.support.damage.failpoint_program import PLACES, find_function


@pytest.mark.parametrize("place", PLACES)
def test_every_place_is_a_function_of_the_product(place: str) -> None:
    assert callable(find_function(PLACES[place])[2])
