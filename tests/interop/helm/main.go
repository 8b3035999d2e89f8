// Decodes what `helm template` prints, from standard input, into the types of the Kubernetes API.
// A field that the API does not have is an error. Prints each object as a line of JSON.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	stream "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// Kinds of the Prometheus operator are not part of the Kubernetes API: only their heads are checked.
var foreign = map[string]bool{"ServiceMonitor": true, "PrometheusRule": true}

func typeOf(head meta.TypeMeta) (any, error) {
	switch head.APIVersion + " " + head.Kind {
	case "apps/v1 StatefulSet":
		return &apps.StatefulSet{}, nil
	case "v1 Service":
		return &core.Service{}, nil
	case "v1 ServiceAccount":
		return &core.ServiceAccount{}, nil
	case "v1 ConfigMap":
		return &core.ConfigMap{}, nil
	case "v1 Pod":
		return &core.Pod{}, nil
	case "networking.k8s.io/v1 NetworkPolicy":
		return &networking.NetworkPolicy{}, nil
	}
	if foreign[head.Kind] && head.APIVersion == "monitoring.coreos.com/v1" {
		return &map[string]any{}, nil
	}
	return nil, fmt.Errorf("unknown kind: %s %s", head.APIVersion, head.Kind)
}

func decode(document []byte) error {
	var head meta.TypeMeta
	if err := yaml.Unmarshal(document, &head); err != nil {
		return err
	}
	if head.Kind == "" { // only a comment
		return nil
	}
	object, err := typeOf(head)
	if err != nil {
		return err
	}
	if err := yaml.UnmarshalStrict(document, object); err != nil {
		return fmt.Errorf("%s: %w", head.Kind, err)
	}
	return json.NewEncoder(os.Stdout).Encode(object)
}

func main() {
	reader := stream.NewYAMLReader(bufio.NewReader(os.Stdin))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return
		}
		if err == nil {
			err = decode(document)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}
