"""Places in the code of functions."""

import functools
import sys

import pytest

from neural_compressor.torch.modules.code_places import is_gone, place


def here():
    frame = sys._getframe(1)
    return place(frame.f_code, frame.f_lasti, frame.f_lineno)


def wrapped(function):
    @functools.wraps(function)
    def around(*args):
        return [*function(*args), here()]

    return around


def of_the_package():
    return here()


class Owner:
    def method(self):
        return [of_the_package(), here()]

    @wrapped
    def decorated(self):
        return self.method()


def test_places_are_found_again():
    places = Owner().decorated()
    assert len(places) == 3
    assert not is_gone("<".join(places), Owner)


@pytest.mark.parametrize("at", range(3))
def test_a_place_on_another_line_is_gone(at):
    places = Owner().decorated()
    function, line, columns = places[at].rsplit(":", 2)
    places[at] = f"{function}:{int(line) + 20}:{columns}"
    assert is_gone("<".join(places), Owner)


def test_a_place_of_a_python_that_tells_it_in_another_way_is_gone():
    function, line, columns = Owner().method()[1].rsplit(":", 2)
    other = "12" if "-" in columns else "12-20"
    assert is_gone(f"{function}:{line}:{other}", Owner)


def test_of_functions_that_are_not_known_nothing_is_said():
    known = Owner().method()[1]
    columns = known.rpartition(":")[2]
    assert not is_gone(f"<lambda>:0:{columns}<elsewhere.<locals>.f:1:{columns}<{known}", Owner)
