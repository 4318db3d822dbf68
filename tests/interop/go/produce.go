package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const batchMessages = 10

// requestPatience is how long one request waits for its reply.
const requestPatience = 60 * time.Second

// This client sends oneway messages without the oneway flag, so the broker answers them and nobody reads the answers.
// A connection closed with unread answers is reset, and a reset throws away what the broker has not read yet.
const onewayDrain = 500 * time.Millisecond

// modulo picks the queue by the message's number, which travels in its sharding key.
type modulo struct{}

func (modulo) Select(message *primitive.Message, queues []*primitive.MessageQueue, _ string) *primitive.MessageQueue {
	number, err := strconv.Atoi(message.GetShardingKey())
	if err != nil {
		panic(err)
	}
	return queues[number%len(queues)]
}

func produce(o options) error {
	mode := o.text("mode", "sync")
	settings := []producer.Option{
		producer.WithNameServer([]string{o.text("namesrv", "")}),
		producer.WithGroupName(o.text("group", "interop-producer")),
		producer.WithCompressMsgBodyOverHowmuch(o.number("compress-over", 4096)),
		producer.WithSendMsgTimeout(20 * time.Second),
	}
	if mode == "selector" {
		settings = append(settings, producer.WithQueueSelector(modulo{}))
	}
	if trace := o.trace(); trace != nil {
		settings = append(settings, producer.WithTrace(trace))
	}
	if account := o.credentials(); account.AccessKey != "" {
		settings = append(settings, producer.WithCredentials(account))
	}
	client, err := rocketmq.NewProducer(settings...)
	if err != nil {
		return err
	}
	if err := client.Start(); err != nil {
		return err
	}
	defer client.Shutdown()
	first, count := o.number("first", 0), o.number("count", 1)
	messages := make([]*primitive.Message, count)
	for at := range messages {
		messages[at] = message(o, first+at, mode)
	}
	if err := send(client, mode, messages, first); err != nil {
		return err
	}
	if o.number("trace", 0) == 1 {
		// A shutdown of this client throws away the traces that wait: one who wants them says when they are there.
		select {
		case <-stopAsked():
		case <-time.After(time.Duration(o.number("timeout", 60)) * time.Second):
		}
	}
	emit("done", map[string]any{"count": count})
	return nil
}

func message(o options, index int, mode string) *primitive.Message {
	built := primitive.NewMessage(o.text("topic", ""), body(o, index))
	if tags := strings.Split(o.text("tags", ""), ","); tags[0] != "" {
		built.WithTag(tags[index%len(tags)])
	}
	if keys := strings.ReplaceAll(o.text("keys", ""), "{i}", strconv.Itoa(index)); keys != "" {
		built.WithKeys(strings.Split(keys, " "))
	}
	for name, value := range o.properties() {
		built.WithProperty(name, value)
	}
	if level := o.number("delay-level", 0); level > 0 {
		built.WithDelayTimeLevel(level)
	}
	if mode == "selector" {
		built.WithShardingKey(strconv.Itoa(index))
	}
	return built
}

// body is "prefix-index|" repeated to the wanted number of bytes, or once without a bar when no size is given.
func body(o options, index int) []byte {
	unit := fmt.Sprintf("%s-%d", o.text("body", "body"), index)
	size := o.number("body-size", 0)
	if size == 0 {
		return []byte(unit)
	}
	return []byte(strings.Repeat(unit+"|", size/len(unit)+1))[:size]
}

func send(client rocketmq.Producer, mode string, messages []*primitive.Message, first int) error {
	background := context.Background()
	switch mode {
	case "sync", "selector":
		for at, message := range messages {
			result, err := client.SendSync(background, message)
			if err != nil {
				return err
			}
			sent(first+at, 1, result)
		}
	case "batch":
		for at := 0; at < len(messages); at += batchMessages {
			end := min(at+batchMessages, len(messages))
			result, err := client.SendSync(background, messages[at:end]...)
			if err != nil {
				return err
			}
			sent(first+at, end-at, result)
		}
	case "request":
		for at, message := range messages {
			reply, err := client.Request(background, requestPatience, message)
			if err != nil {
				return err
			}
			emit("reply", map[string]any{"index": first + at, "body": string(reply.Body)})
		}
	case "oneway":
		for _, message := range messages {
			if err := client.SendOneWay(background, message); err != nil {
				return err
			}
		}
		time.Sleep(onewayDrain)
	case "async":
		return sendAsync(client, messages, first)
	default:
		return fmt.Errorf("unknown mode %s", mode)
	}
	return nil
}

func sendAsync(client rocketmq.Producer, messages []*primitive.Message, first int) error {
	answers := make(chan error, len(messages))
	for at, message := range messages {
		err := client.SendAsync(context.Background(), func(_ context.Context, result *primitive.SendResult, err error) {
			if err == nil {
				sent(first+at, 1, result)
			}
			answers <- err
		}, message)
		if err != nil {
			return err
		}
	}
	for range messages {
		select {
		case err := <-answers:
			if err != nil {
				return err
			}
		case <-time.After(20 * time.Second):
			return fmt.Errorf("no answer to an async send in 20 s")
		}
	}
	return nil
}

func sent(index, count int, result *primitive.SendResult) {
	status := "SEND_OK"
	if result.Status != primitive.SendOK {
		status = fmt.Sprintf("status %d", result.Status)
	}
	emit("sent", map[string]any{
		"index": index, "count": count, "status": status, "msgId": result.MsgID, "offsetMsgId": result.OffsetMsgID,
		"queueId": result.MessageQueue.QueueId, "brokerName": result.MessageQueue.BrokerName,
		"queueOffset": result.QueueOffset,
	})
}
