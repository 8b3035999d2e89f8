"""The format of batches, segments and message ids: encode, check, decode. Pure."""
