// Publishes or consumes with go-amqp as fast as one connection can, and prints the seconds.
//
//	load URL ADDRESS publish|consume MESSAGES BYTES CREDIT DURABLE
//
// It exits with status 3 and a line on stderr if the broker stops: no message for stopTime.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/Azure/go-amqp"
)

const (
	stopTime   = 15 * time.Second
	stopStatus = 3
)

// The number of messages that the broker has accepted or sent.
var done atomic.Int64

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
	go watch(messages)
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

// End the process if no message has come for stopTime.
func watch(messages int) {
	before, since := int64(0), time.Now()
	for {
		time.Sleep(time.Second)
		if count := done.Load(); count != before {
			before, since = count, time.Now()
		} else if time.Since(since) > stopTime {
			fmt.Fprintf(os.Stderr, "stopped after %d of %d messages", count, messages)
			os.Exit(stopStatus)
		}
	}
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
		done.Add(1)
	}
	return <-sent
}

// The credit is renewed here, about half of it each time, and not by the client's automatic renewal.
// RabbitMQ 3.10 computes the credit of a queue without the messages that are on their way from the
// queue, so it sends more messages than it has credit for (rabbitmq-server issue 2597). Then the
// credit that go-amqp counts wraps around to four billion, and the automatic renewal never comes.
// A renewal of exactly the messages that were too many would give credit 0, for which go-amqp sends
// nothing. If RabbitMQ handles two renewals in a row, these messages are as many as the first one
// granted. So each renewal grants one more than the one before.
func consume(
	ctx context.Context, session *amqp.Session, address string, messages, credit int,
) error {
	receiver, err := session.NewReceiver(ctx, address, &amqp.ReceiverOptions{Credit: -1})
	if err != nil {
		return err
	}
	if err := receiver.IssueCredit(uint32(credit)); err != nil {
		return err
	}
	step, used := credit/2, 0
	for range messages {
		message, err := receiver.Receive(ctx, nil)
		if err != nil {
			return err
		}
		if err := receiver.AcceptMessage(ctx, message); err != nil {
			return err
		}
		if used++; used == step {
			if err := receiver.IssueCredit(uint32(used)); err != nil {
				return err
			}
			step, used = step+1, 0
		}
		done.Add(1)
	}
	return nil
}
