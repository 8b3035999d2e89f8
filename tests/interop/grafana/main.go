// Reads a dashboard with Grafana's own types, strictly: a field that is unknown, missing or of
// another type is printed, and the exit code is 1. Prints the number of panels otherwise.
package main

import (
	"fmt"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

func main() {
	plugins.RegisterDefaultPlugins()
	raw, err := os.ReadFile(os.Args[1])
	if err != nil {
		panic(err)
	}
	var read dashboard.Dashboard
	// Both functions return an error without text if all is well.
	if err := read.UnmarshalJSONStrict(raw); err != nil && err.Error() != "" {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := read.Validate(); err != nil && err.Error() != "" {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(len(read.Panels))
}
