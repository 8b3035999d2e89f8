import holdfast.spark
from holdfast.spark import errors


def test_every_error_is_exported_by_the_package() -> None:
    raised = {
        name
        for name, each in vars(errors).items()
        if isinstance(each, type) and issubclass(each, errors.SparkError)
    }
    assert raised <= set(holdfast.spark.__all__)
    assert all(hasattr(holdfast.spark, name) for name in holdfast.spark.__all__)
