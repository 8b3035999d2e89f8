// Publishes or consumes with go-amqp as fast as one connection can, and prints the seconds.
//
//	load URL ADDRESS publish|consume MESSAGES BYTES CREDIT DURABLE
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/Azure/go-amqp"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	number := func(index int) int { found, _ := strconv.Atoi(arguments[index]); return found }
	url, address, mode := arguments[0], arguments[1], arguments[2]
	messages, size, credit := number(3), number(4), number(5)
	ctx := context.Background()
	conn, err := amqp.Dial(ctx, url, &amqp.ConnOptions{SASLType: amqp.SASLTypeAnonymous()})
	if err != nil {
		return err
	}
	defer conn.Close()
	session, err := conn.NewSession(ctx, nil)
	if err != nil {
		return err
	}
	began := time.Now()
	if mode == "publish" {
		err = publish(ctx, session, address, messages, size, arguments[6] == "durable")
	} else {
		err = consume(ctx, session, address, messages, credit)
	}
	fmt.Println(time.Since(began).Seconds())
	return err
}

func publish(
	ctx context.Context, session *amqp.Session, address string, messages, size int, durable bool,
) error {
	sender, err := session.NewSender(ctx, address, nil)
	if err != nil {
		return err
	}
	// As many messages as the broker gives credit for are on the way.
	receipts := make(chan amqp.SendReceipt, 4096)
	sent := make(chan error, 1)
	go func() {
		defer close(receipts)
		body := make([]byte, size)
		for range messages {
			message := amqp.NewMessage(body)
			message.Header = &amqp.MessageHeader{Durable: durable, Priority: 4}
			receipt, err := sender.SendWithReceipt(ctx, message, nil)
			if err != nil {
				sent <- err
				return
			}
			receipts <- receipt
		}
		sent <- nil
	}()
	for receipt := range receipts {
		state, err := receipt.Wait(ctx)
		if err != nil {
			return err
		}
		if _, found := state.(*amqp.StateAccepted); !found {
			return fmt.Errorf("%T", state)
		}
	}
	return <-sent
}

func consume(
	ctx context.Context, session *amqp.Session, address string, messages, credit int,
) error {
	receiver, err := session.NewReceiver(ctx, address, &amqp.ReceiverOptions{
		Credit: int32(credit),
	})
	if err != nil {
		return err
	}
	for range messages {
		message, err := receiver.Receive(ctx, nil)
		if err != nil {
			return err
		}
		if err := receiver.AcceptMessage(ctx, message); err != nil {
			return err
		}
	}
	return nil
}
