// Publishes and reads with the client that oapi-codegen generated from the served OpenAPI document.
// Prints the messages that it read as one JSON object; exits with 1 if any result is wrong.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"example.org/interop/holdfast"
)

const topic = "from-go"

func main() {
	if err := run(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, url string) error {
	client, err := holdfast.NewClientWithResponses(url)
	if err != nil {
		return err
	}
	queues := int32(2)
	made, err := client.PutTopicWithResponse(ctx, topic, holdfast.TopicSettings{Queues: &queues})
	if err != nil || made.JSON201 == nil {
		return fmt.Errorf("create: %v %s", err, made.Body)
	}

	text, base64, key, queue := "grüße", "AP8=", "k", int32(1)
	messages := []holdfast.MessageToPublish{
		{Body: &text, Key: &key, Queue: &queue, Properties: &map[string]string{"region": "EU"}},
		{BodyBase64: &base64, Queue: &queue},
	}
	stored, err := client.PublishWithResponse(
		ctx, topic, nil, holdfast.PublishRequest{Messages: &messages})
	if err != nil || stored.JSON200 == nil || !stored.JSON200.Durable {
		return fmt.Errorf("publish: %v %s", err, stored.Body)
	}
	if result := stored.JSON200.Results[1]; result.Queue != 1 || result.Offset != 1 {
		return fmt.Errorf("publish: %+v", result)
	}

	offset, wait := int64(0), int64(1000)
	pulled, err := client.PullWithResponse(
		ctx, topic, 1, &holdfast.PullParams{Offset: &offset, WaitMs: &wait})
	if err != nil || pulled.JSON200 == nil {
		return fmt.Errorf("pull: %v %s", err, pulled.Body)
	}

	beyond := int64(99)
	refused, err := client.PullWithResponse(ctx, topic, 1, &holdfast.PullParams{Offset: &beyond})
	if err != nil || refused.ApplicationproblemJSON416 == nil {
		return fmt.Errorf("pull beyond the end: %v %s", err, refused.Body)
	}
	if end := refused.ApplicationproblemJSON416.MaxOffset; end == nil || *end != 2 {
		return fmt.Errorf("pull beyond the end: %s", refused.Body)
	}

	leased, err := lease(ctx, client)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"pulled":      pulled.JSON200.Messages,
		"next_offset": pulled.JSON200.NextOffset,
		"leased":      leased,
	})
}

// lease creates a group, receives both messages and acknowledges them.
func lease(ctx context.Context, client *holdfast.ClientWithResponses) (int, error) {
	topics := map[string]holdfast.Subscription{topic: {}}
	group, err := client.PutGroupWithResponse(ctx, "go", holdfast.GroupSettings{Topics: &topics})
	if err != nil || group.JSON201 == nil {
		return 0, fmt.Errorf("group: %v %s", err, group.Body)
	}
	member := "m"
	received, err := client.ReceiveWithResponse(ctx, "go", holdfast.ReceiveRequest{Member: &member})
	if err != nil || received.JSON200 == nil {
		return 0, fmt.Errorf("receive: %v %s", err, received.Body)
	}
	var receipts []string
	for _, message := range received.JSON200.Messages {
		receipts = append(receipts, *message.Receipt)
	}
	done, err := client.AckWithResponse(ctx, "go", holdfast.AckRequest{Receipts: receipts})
	if err != nil || done.JSON200 == nil {
		return 0, fmt.Errorf("ack: %v %s", err, done.Body)
	}
	for _, result := range done.JSON200.Results {
		if result.Status != "done" {
			return 0, fmt.Errorf("ack: %s", done.Body)
		}
	}
	return len(receipts), nil
}
