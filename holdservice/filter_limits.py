"""The limits of filters. Pure."""

#: Longest filter, in bytes of UTF-8.
MAX_FILTER_BYTES = 4096
#: Largest nesting depth of parentheses, NOT and signs.
MAX_FILTER_DEPTH = 64
#: The most names and values in one filter.
MAX_FILTER_TERMS = 256
#: The most tags in one filter.
MAX_FILTER_TAGS = 64
