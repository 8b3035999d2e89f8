package main

// The integration tests of go-amqp need these modules.
import (
	_ "github.com/fortytw2/leaktest"
	_ "github.com/stretchr/testify/require"
)
