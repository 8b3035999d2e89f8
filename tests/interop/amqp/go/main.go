// Runs commands for go-amqp: one JSON object per line of standard input, one reply per line of
// standard output. See ../clients.py for the commands and ../values.py for the form of values.
package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"time"

	"github.com/Azure/go-amqp"
)

type object = map[string]any

type command struct {
	Verb, Address, Outcome, Selector string
	Count, Credit                    int
	Drain, Settled, Second           bool
	Failed, Undeliverable            bool
	FrameBytes                       uint32 `json:"frame_bytes"`
	Messages                         []object
	Annotations                      []any
}

func main() {
	url := os.Args[1]
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	reply := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var asked command
		result := object{}
		err := json.Unmarshal(lines.Bytes(), &asked)
		if err == nil {
			err = run(url, asked, result, reply)
		}
		if err != nil {
			result["error"] = err.Error()
		}
		reply.Encode(result)
	}
}

func run(url string, asked command, result object, reply *json.Encoder) error {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	conn, err := amqp.Dial(ctx, url, &amqp.ConnOptions{
		SASLType: amqp.SASLTypeAnonymous(), MaxFrameSize: asked.FrameBytes,
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	session, err := conn.NewSession(ctx, nil)
	if err != nil {
		return err
	}
	switch asked.Verb {
	case "send":
		return send(ctx, session, asked, result)
	case "receive":
		return receive(ctx, session, asked, result)
	case "consume":
		return consume(session, asked, reply)
	}
	return fmt.Errorf("no verb %q", asked.Verb)
}

func send(ctx context.Context, session *amqp.Session, asked command, result object) error {
	options := &amqp.SenderOptions{}
	if asked.Settled {
		options.SettlementMode = amqp.SenderSettleModeSettled.Ptr()
	}
	sender, err := session.NewSender(ctx, asked.Address, options)
	if err != nil {
		return err
	}
	outcomes := []string{}
	for _, each := range asked.Messages {
		if asked.Settled {
			if err := sender.Send(ctx, decodeMessage(each), nil); err != nil {
				return err
			}
			outcomes = append(outcomes, "settled")
			continue
		}
		receipt, err := sender.SendWithReceipt(ctx, decodeMessage(each), nil)
		if err != nil {
			return err
		}
		state, err := receipt.Wait(ctx)
		if err != nil {
			return err
		}
		outcomes = append(outcomes, nameOf(state))
	}
	result["outcomes"] = outcomes
	return sender.Close(ctx)
}

func nameOf(state amqp.DeliveryState) string {
	switch state.(type) {
	case *amqp.StateAccepted:
		return "accepted"
	case *amqp.StateRejected:
		return "rejected"
	case *amqp.StateReleased:
		return "released"
	case *amqp.StateModified:
		return "modified"
	}
	return fmt.Sprintf("%T", state)
}

func attach(ctx context.Context, session *amqp.Session, asked command) (*amqp.Receiver, error) {
	options := &amqp.ReceiverOptions{Credit: -1}
	if asked.Selector != "" {
		options.Filters = []amqp.LinkFilter{amqp.NewSelectorFilter(asked.Selector)}
	}
	if asked.Settled {
		options.RequestedSenderSettleMode = amqp.SenderSettleModeSettled.Ptr()
	}
	if asked.Second {
		options.SettlementMode = amqp.ReceiverSettleModeSecond.Ptr()
	}
	return session.NewReceiver(ctx, asked.Address, options)
}

func receive(ctx context.Context, session *amqp.Session, asked command, result object) error {
	receiver, err := attach(ctx, session, asked)
	if err != nil {
		return err
	}
	if err := receiver.IssueCredit(uint32(max(asked.Credit, asked.Count))); err != nil {
		return err
	}
	messages := []object{}
	take := func(message *amqp.Message) error {
		messages = append(messages, encodeMessage(message))
		return settle(ctx, receiver, message, asked)
	}
	for len(messages) < asked.Count {
		message, err := receiver.Receive(ctx, nil)
		if err != nil {
			return err
		}
		if err := take(message); err != nil {
			return err
		}
	}
	if asked.Drain {
		// A drain that follows too soon replaces the credit that was issued before it.
		for {
			short, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
			message, err := receiver.Receive(short, nil)
			cancel()
			if errors.Is(err, context.DeadlineExceeded) {
				break
			}
			if err != nil {
				return err
			}
			if err := take(message); err != nil {
				return err
			}
		}
		if err := receiver.DrainCredit(ctx, nil); err != nil {
			return err
		}
		for message := receiver.Prefetched(); message != nil; message = receiver.Prefetched() {
			if err := take(message); err != nil {
				return err
			}
		}
		result["drained"] = true
	}
	result["messages"] = messages
	return receiver.Close(ctx)
}

func settle(ctx context.Context, receiver *amqp.Receiver, message *amqp.Message, asked command) error {
	switch asked.Outcome {
	case "", "accept":
		return receiver.AcceptMessage(ctx, message)
	case "reject":
		return receiver.RejectMessage(ctx, message, &amqp.Error{
			Condition: "test:bad", Description: "not wanted",
		})
	case "release":
		return receiver.ReleaseMessage(ctx, message)
	case "modify":
		annotations := amqp.Annotations{}
		for key, value := range decodePairs(asked.Annotations) {
			annotations[string(key.(amqp.Symbol))] = value
		}
		return receiver.ModifyMessage(ctx, message, &amqp.ModifyMessageOptions{
			DeliveryFailed: asked.Failed, UndeliverableHere: asked.Undeliverable,
			Annotations: annotations,
		})
	}
	return nil
}

// Prints each message when it arrives and when its acceptance is settled by the broker, until the
// connection ends.
func consume(session *amqp.Session, asked command, reply *json.Encoder) error {
	ctx := context.Background()
	receiver, err := attach(ctx, session, asked)
	if err != nil {
		return err
	}
	if err := receiver.IssueCredit(uint32(asked.Credit)); err != nil {
		return err
	}
	for {
		message, err := receiver.Receive(ctx, nil)
		if err != nil {
			return err
		}
		body := string(message.GetData())
		reply.Encode(object{"arrived": body, "at": time.Now().UnixNano()})
		if err := receiver.AcceptMessage(ctx, message); err != nil {
			return err
		}
		reply.Encode(object{"settled": body, "at": time.Now().UnixNano()})
		if err := receiver.IssueCredit(1); err != nil {
			return err
		}
	}
}

// ---- Messages

func decodeMessage(fields object) *amqp.Message {
	message := &amqp.Message{}
	if header, found := fields["header"].(object); found {
		message.Header = &amqp.MessageHeader{Priority: 4}
		message.Header.Durable, _ = header["durable"].(bool)
		if priority, found := header["priority"].(float64); found {
			message.Header.Priority = uint8(priority)
		}
		if ttl, found := header["ttl"].(float64); found {
			message.Header.TTL = time.Duration(ttl) * time.Millisecond
		}
	}
	if pairs, found := fields["annotations"]; found {
		message.Annotations = amqp.Annotations{}
		for key, value := range decodePairs(pairs) {
			message.Annotations[string(key.(amqp.Symbol))] = value
		}
	}
	if properties, found := fields["properties"].(object); found {
		message.Properties = decodeProperties(properties)
	}
	if pairs, found := fields["application_properties"]; found {
		message.ApplicationProperties = map[string]any{}
		for key, value := range decodePairs(pairs) {
			message.ApplicationProperties[key.(string)] = value
		}
	}
	body := fields["body"].([]any)
	switch body[0] {
	case "data":
		for _, each := range body[1:] {
			message.Data = append(message.Data, unhex(each))
		}
	case "sequence":
		for _, each := range body[1:] {
			message.Sequence = append(message.Sequence, decodeList(each))
		}
	case "value":
		message.Value = decode(body[1])
		if message.Value == nil {
			message.Value = amqp.Null{}
		}
	}
	return message
}

func encodeMessage(message *amqp.Message) object {
	fields := object{}
	if header := message.Header; header != nil {
		fields["header"] = object{
			"durable": header.Durable, "priority": header.Priority,
			"ttl": header.TTL.Milliseconds(), "first_acquirer": header.FirstAcquirer,
			"delivery_count": header.DeliveryCount,
		}
	}
	annotations := map[any]any{}
	for key, value := range message.Annotations {
		if name, found := key.(string); found {
			key = amqp.Symbol(name)
		}
		annotations[key] = value
	}
	fields["annotations"] = encodePairs(annotations)
	if message.Properties != nil {
		fields["properties"] = encodeProperties(message.Properties)
	}
	properties := map[any]any{}
	for key, value := range message.ApplicationProperties {
		properties[key] = value
	}
	fields["application_properties"] = encodePairs(properties)
	switch {
	case message.Data != nil:
		body := []any{"data"}
		for _, each := range message.Data {
			body = append(body, hex.EncodeToString(each))
		}
		fields["body"] = body
	case message.Sequence != nil:
		body := []any{"sequence"}
		for _, each := range message.Sequence {
			body = append(body, encodeList(each))
		}
		fields["body"] = body
	default:
		fields["body"] = []any{"value", encode(message.Value)}
	}
	return fields
}

func decodeProperties(fields object) *amqp.MessageProperties {
	properties := &amqp.MessageProperties{}
	text := func(name string) *string {
		switch found := decode(fields[name]).(type) {
		case string:
			return &found
		case amqp.Symbol:
			return (*string)(&found)
		}
		return nil
	}
	instant := func(name string) *time.Time {
		if found, is := decode(fields[name]).(time.Time); is {
			return &found
		}
		return nil
	}
	properties.MessageID = decode(fields["message_id"])
	properties.UserID, _ = decode(fields["user_id"]).([]byte)
	properties.To = text("to")
	properties.Subject = text("subject")
	properties.ReplyTo = text("reply_to")
	properties.CorrelationID = decode(fields["correlation_id"])
	properties.ContentType = text("content_type")
	properties.ContentEncoding = text("content_encoding")
	properties.AbsoluteExpiryTime = instant("absolute_expiry_time")
	properties.CreationTime = instant("creation_time")
	properties.GroupID = text("group_id")
	if found, is := decode(fields["group_sequence"]).(uint32); is {
		properties.GroupSequence = &found
	}
	properties.ReplyToGroupID = text("reply_to_group_id")
	return properties
}

func encodeProperties(properties *amqp.MessageProperties) object {
	fields := object{}
	put := func(name string, isSet bool, value func() any) {
		if isSet {
			fields[name] = encode(value())
		}
	}
	text := func(name string, value *string) {
		put(name, value != nil, func() any { return *value })
	}
	symbol := func(name string, value *string) {
		put(name, value != nil, func() any { return amqp.Symbol(*value) })
	}
	instant := func(name string, value *time.Time) {
		put(name, value != nil, func() any { return *value })
	}
	put("message_id", properties.MessageID != nil, func() any { return properties.MessageID })
	put("user_id", properties.UserID != nil, func() any { return properties.UserID })
	text("to", properties.To)
	text("subject", properties.Subject)
	text("reply_to", properties.ReplyTo)
	put("correlation_id", properties.CorrelationID != nil, func() any {
		return properties.CorrelationID
	})
	symbol("content_type", properties.ContentType)
	symbol("content_encoding", properties.ContentEncoding)
	instant("absolute_expiry_time", properties.AbsoluteExpiryTime)
	instant("creation_time", properties.CreationTime)
	text("group_id", properties.GroupID)
	put("group_sequence", properties.GroupSequence != nil, func() any {
		return *properties.GroupSequence
	})
	text("reply_to_group_id", properties.ReplyToGroupID)
	return fields
}

// ---- Values

func unhex(value any) []byte {
	octets, err := hex.DecodeString(value.(string))
	if err != nil {
		panic(err)
	}
	return octets
}

func decodeList(value any) []any {
	values := []any{}
	for _, each := range value.([]any) {
		values = append(values, decode(each))
	}
	return values
}

func decodePairs(value any) map[any]any {
	pairs := map[any]any{}
	for _, each := range value.([]any) {
		pair := each.([]any)
		pairs[decode(pair[0])] = decode(pair[1])
	}
	return pairs
}

func decode(value any) any {
	if value == nil {
		return nil
	}
	typed := value.([]any)
	text, _ := typed[1].(string)
	signed := func(bits int) int64 { found, _ := strconv.ParseInt(text, 10, bits); return found }
	unsigned := func(bits int) uint64 { found, _ := strconv.ParseUint(text, 10, bits); return found }
	bits := func(size int) uint64 { found, _ := strconv.ParseUint(text, 16, size); return found }
	switch typed[0] {
	case "boolean":
		return typed[1]
	case "ubyte":
		return uint8(unsigned(8))
	case "ushort":
		return uint16(unsigned(16))
	case "uint":
		return uint32(unsigned(32))
	case "ulong":
		return unsigned(64)
	case "byte":
		return int8(signed(8))
	case "short":
		return int16(signed(16))
	case "int":
		return int32(signed(32))
	case "long":
		return signed(64)
	case "float":
		return math.Float32frombits(uint32(bits(32)))
	case "double":
		return math.Float64frombits(bits(64))
	case "timestamp":
		return time.UnixMilli(signed(64))
	case "uuid":
		return amqp.UUID(unhex(text))
	case "binary":
		return unhex(text)
	case "string":
		return text
	case "symbol":
		return amqp.Symbol(text)
	case "list":
		return decodeList(typed[1])
	case "map":
		return decodePairs(typed[1])
	case "array":
		return decodeArray(text, typed[2].([]any))
	}
	return nil
}

func arrayOf[T any](element string, values []any) []T {
	array := []T{}
	for _, each := range values {
		array = append(array, decode([]any{element, each}).(T))
	}
	return array
}

func decodeArray(element string, values []any) any {
	switch element {
	case "boolean":
		return arrayOf[bool](element, values)
	case "ushort":
		return arrayOf[uint16](element, values)
	case "uint":
		return arrayOf[uint32](element, values)
	case "ulong":
		return arrayOf[uint64](element, values)
	case "byte":
		return arrayOf[int8](element, values)
	case "short":
		return arrayOf[int16](element, values)
	case "int":
		return arrayOf[int32](element, values)
	case "long":
		return arrayOf[int64](element, values)
	case "float":
		return arrayOf[float32](element, values)
	case "double":
		return arrayOf[float64](element, values)
	case "timestamp":
		return arrayOf[time.Time](element, values)
	case "uuid":
		return arrayOf[amqp.UUID](element, values)
	case "binary":
		return arrayOf[[]byte](element, values)
	case "string":
		return arrayOf[string](element, values)
	case "symbol":
		return arrayOf[amqp.Symbol](element, values)
	}
	panic(errors.New("no array of " + element))
}

func encodeList(values []any) []any {
	encoded := []any{}
	for _, each := range values {
		encoded = append(encoded, encode(each))
	}
	return encoded
}

func encodePairs(pairs map[any]any) []any {
	encoded := []any{}
	for key, value := range pairs {
		encoded = append(encoded, []any{encode(key), encode(value)})
	}
	return encoded
}

func encodeArray[T any](element string, array []T) any {
	values := []any{}
	for _, each := range array {
		values = append(values, encode(each).([]any)[1])
	}
	return []any{"array", element, values}
}

func encode(value any) any {
	switch found := value.(type) {
	case nil, amqp.Null:
		return []any{"null", nil}
	case bool:
		return []any{"boolean", found}
	case uint8:
		return []any{"ubyte", fmt.Sprint(found)}
	case uint16:
		return []any{"ushort", fmt.Sprint(found)}
	case uint32:
		return []any{"uint", fmt.Sprint(found)}
	case uint64:
		return []any{"ulong", fmt.Sprint(found)}
	case int8:
		return []any{"byte", fmt.Sprint(found)}
	case int16:
		return []any{"short", fmt.Sprint(found)}
	case int32:
		return []any{"int", fmt.Sprint(found)}
	case int64:
		return []any{"long", fmt.Sprint(found)}
	case float32:
		return []any{"float", fmt.Sprintf("%08x", math.Float32bits(found))}
	case float64:
		return []any{"double", fmt.Sprintf("%016x", math.Float64bits(found))}
	case time.Time:
		return []any{"timestamp", fmt.Sprint(found.UnixMilli())}
	case amqp.UUID:
		return []any{"uuid", hex.EncodeToString(found[:])}
	case []byte:
		return []any{"binary", hex.EncodeToString(found)}
	case string:
		return []any{"string", found}
	case amqp.Symbol:
		return []any{"symbol", string(found)}
	case []any:
		return []any{"list", encodeList(found)}
	case map[any]any:
		return []any{"map", encodePairs(found)}
	case map[string]any:
		pairs := map[any]any{}
		for key, value := range found {
			pairs[key] = value
		}
		return []any{"map", encodePairs(pairs)}
	case []bool:
		return encodeArray("boolean", found)
	case []uint16:
		return encodeArray("ushort", found)
	case []uint32:
		return encodeArray("uint", found)
	case []uint64:
		return encodeArray("ulong", found)
	case []int8:
		return encodeArray("byte", found)
	case []int16:
		return encodeArray("short", found)
	case []int32:
		return encodeArray("int", found)
	case []int64:
		return encodeArray("long", found)
	case []float32:
		return encodeArray("float", found)
	case []float64:
		return encodeArray("double", found)
	case []time.Time:
		return encodeArray("timestamp", found)
	case []amqp.UUID:
		return encodeArray("uuid", found)
	case [][]byte:
		return encodeArray("binary", found)
	case []string:
		return encodeArray("string", found)
	case []amqp.Symbol:
		return encodeArray("symbol", found)
	}
	return []any{"unknown", fmt.Sprintf("%T", value)}
}
