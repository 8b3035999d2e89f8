import pytest

from holdfast.spark.errors import UnwritableColumn
from holdfast.spark.write.columns import Column, choose_columns, choose_sort_columns

MAP = "map<string,string>"
HEADERS = "array<struct<key:string,value:binary>>"


def test_names_are_not_case_sensitive_and_kept_for_messages() -> None:
    schema = [("Key", "string"), ("VALUE", "binary"), ("topic", "string collate UNICODE")]
    assert choose_columns(schema, topic_given=False) == {
        "key": Column(0, "Key"),
        "body": Column(1, "VALUE"),
        "topic": Column(2, "topic"),
    }


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ([("body", "binary"), ("tags", "string")], "'tags' is not part .* did you mean 'tag'"),
        ([("body", "binary"), ("offset", "bigint")], r"set by the broker.*drop\('offset'\)"),
        ([("body", "binary"), ("timestampType", "int")], "set by the broker"),
        ([("body", "int")], "has type int; cast it to string or binary"),
        ([("body", "binary"), ("born_timestamp", "timestamp_ntz")], "cast it to timestamp"),
        ([("body", "binary"), ("value", "binary")], "'value' has the same meaning as 'body'"),
        ([("properties", MAP), ("body", "string"), ("headers", HEADERS)], "as 'properties'"),
        ([("key", "binary")], "'body' is missing"),
    ],
)  # fmt: skip
def test_columns_that_no_message_has_are_refused(schema: list[tuple[str, str]], says: str) -> None:
    with pytest.raises(UnwritableColumn, match=says):
        choose_columns(schema, topic_given=True)


def test_without_the_option_topic_a_column_must_give_it() -> None:
    with pytest.raises(UnwritableColumn, match="give the option topic"):
        choose_columns([("body", "binary")], topic_given=False)


def test_columns_to_sort_by_have_an_order_and_are_there() -> None:
    schema = [("Key", "string"), ("properties", MAP)]
    assert choose_sort_columns(schema, ["key"]) == (Column(0, "Key"),)
    assert choose_sort_columns(schema, []) == ()
    with pytest.raises(UnwritableColumn, match="did you mean 'key'"):
        choose_sort_columns(schema, ["keys"])
    with pytest.raises(UnwritableColumn, match="without an order"):
        choose_sort_columns(schema, ["properties"])
