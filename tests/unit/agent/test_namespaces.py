from kveik.agent.namespaces import Namespaces
from kveik.kv.namespace import REQUIRED_FACTS, Namespace

FACTS = dict.fromkeys(REQUIRED_FACTS, "same")


def test_the_first_engine_of_a_label_gets_no_note() -> None:
    assert Namespaces().announce(Namespace(FACTS, "model")) == (True, [])


def test_a_second_engine_with_the_same_facts_gets_no_note() -> None:
    known = Namespaces()
    known.announce(Namespace(FACTS, "model"))
    assert known.announce(Namespace(FACTS, "model")) == (False, [])


def test_a_difference_to_an_engine_of_the_same_label_is_put_in_words() -> None:
    known = Namespaces()
    known.announce(Namespace({**FACTS, "kv_cache_dtype": "float32"}, "model"))
    is_new, notes = known.announce(Namespace({**FACTS, "kv_cache_dtype": "bfloat16"}, "model"))
    assert is_new
    assert notes[0].startswith("namespace differs: kv_cache_dtype bfloat16 != float32")


def test_engines_of_another_label_are_not_compared() -> None:
    known = Namespaces()
    known.announce(Namespace(FACTS, "one"))
    assert known.announce(Namespace({**FACTS, "dtype": "other"}, "two"))[1] == []


def test_the_latest_few_differences_are_told() -> None:
    known = Namespaces()
    for number in range(6):
        known.announce(Namespace({**FACTS, "dtype": str(number)}, "model"))
    _, notes = known.announce(Namespace(FACTS, "model"))
    assert len(notes) == 3
    assert "dtype same != 5" in notes[0]


def test_labels_are_found_by_digest() -> None:
    known = Namespaces()
    namespace = Namespace(FACTS, "model")
    known.announce(namespace)
    assert known.label(namespace.digest) == "model"
    assert known.label(b"x" * 16) == ""


def test_a_model_that_goes_by_several_labels_is_compared_under_each() -> None:
    namespaces = Namespaces()
    namespaces.announce(Namespace(FACTS, "first name"))
    namespaces.announce(Namespace(FACTS, "second name"))
    _, notes = namespaces.announce(Namespace({**FACTS, "weights_digest": "other"}, "second name"))
    assert len(notes) == 1
    assert "weights_digest other != " in notes[0]
