from anabranch.lab.degrees import DegreeUnit, degrees_of, random_links
from anabranch.lab.experiment import Params


def test_degrees_are_the_papers_up_to_the_one_given() -> None:
    assert degrees_of(Params((8,), degree=16)) == [4, 6, 8, 10, 12, 14, 16]
    assert degrees_of(Params((8,), degree=5)) == [4]
    assert degrees_of(Params((8,), degree=3)) == [3]


def test_every_degree_has_its_own_seed_and_links() -> None:
    params = Params((8,), seed=7)
    assert DegreeUnit(params, 8, 2, degree=6).seed == "7/8/2/6"
    links = random_links(20, 4, "seed")
    assert links.shape == (40, 2)
    assert (links[:, 0] < links[:, 1]).all()
    assert (random_links(20, 4, "seed") == links).all()
