"""Convert stored blocks and single messages into Arrow record batches."""
