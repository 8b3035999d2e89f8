// Reads a compose file with the library of `docker compose`: a field that is unknown or of another
// type is printed, and the exit code is 1. Prints the project as a line of JSON otherwise.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/compose-spec/compose-go/v2/cli"
)

func main() {
	options, err := cli.NewProjectOptions(os.Args[1:2])
	if err != nil {
		panic(err)
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	raw, err := project.MarshalJSON()
	if err != nil {
		panic(err)
	}
	fmt.Println(string(raw))
}
