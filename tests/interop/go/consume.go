package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// lingerMs is from the last awaited message to the shutdown: the client counts a message as consumed after its
// listener returned.
const lingerMs = 150

// consume receives until enough messages came, time is up, or a line (or the end) of standard input asks it to stop.
func consume(o options) error {
	model := consumer.Clustering
	if o.text("model", "clustering") == "broadcasting" {
		model = consumer.BroadCasting
	}
	from, err := fromWhere(o)
	if err != nil {
		return err
	}
	settings := []consumer.Option{
		consumer.WithNameServer([]string{o.text("namesrv", "")}),
		consumer.WithGroupName(o.text("group", "")),
		consumer.WithInstance(fmt.Sprintf("%d", os.Getpid())),
		consumer.WithConsumerModel(model),
		consumer.WithConsumeFromWhere(from),
		consumer.WithConsumeMessageBatchMaxSize(batchSize(o)),
		consumer.WithMaxReconsumeTimes(int32(o.number("max-reconsume-times", -1))),
	}
	if timestamp := o.text("timestamp", ""); timestamp != "" {
		settings = append(settings, consumer.WithConsumeTimestamp(timestamp))
	}
	if trace := o.trace(); trace != nil {
		settings = append(settings, consumer.WithTrace(trace))
	}
	if o.text("mode", "push") == "orderly" {
		settings = append(settings, consumer.WithConsumerOrder(true))
	}
	reply := func(*primitive.MessageExt) {}
	if o.number("reply", 0) == 1 {
		replier, err := newReplier(o.text("namesrv", ""))
		if err != nil {
			return err
		}
		defer replier.Shutdown()
		reply = func(request *primitive.MessageExt) { replyTo(replier, request) }
	}
	if account := o.credentials(); account.AccessKey != "" {
		settings = append(settings, consumer.WithCredentials(account))
	}
	client, err := rocketmq.NewPushConsumer(settings...)
	if err != nil {
		return err
	}
	var received atomic.Int64
	expected := int64(o.number("expect", 1<<30))
	enough := make(chan struct{}, 1)
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: o.text("tag", "*")}
	if expression := o.text("sql", ""); expression != "" {
		selector = consumer.MessageSelector{Type: consumer.SQL92, Expression: expression}
	}
	err = client.Subscribe(o.text("topic", ""), selector,
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, message := range messages {
				describe(message)
				reply(message)
			}
			if received.Add(int64(len(messages))) >= expected {
				select {
				case enough <- struct{}{}:
				default:
				}
			}
			if int(messages[0].ReconsumeTimes) < o.number("fail", 0) {
				return consumer.ConsumeRetryLater, nil
			}
			return consumer.ConsumeSuccess, nil
		})
	if err != nil {
		return err
	}
	if err := client.Start(); err != nil {
		return err
	}
	emit("started", map[string]any{})
	select {
	case <-enough:
		time.Sleep(time.Duration(o.number("linger-ms", lingerMs)) * time.Millisecond)
	case <-stopAsked():
	case <-time.After(time.Duration(o.number("timeout", 60)) * time.Second):
	}
	if err := client.Shutdown(); err != nil {
		return err
	}
	emit("done", map[string]any{"count": received.Load()})
	return nil
}

// batchSize is how many messages the listener gets at once: one where some are to fail.
func batchSize(o options) int {
	if o.number("fail", 0) > 0 {
		return 1
	}
	return 32
}

func fromWhere(o options) (consumer.ConsumeFromWhere, error) {
	switch o.text("from", "first") {
	case "first":
		return consumer.ConsumeFromFirstOffset, nil
	case "last":
		return consumer.ConsumeFromLastOffset, nil
	case "timestamp":
		return consumer.ConsumeFromTimestamp, nil
	}
	return 0, fmt.Errorf("unknown from %s", o.text("from", ""))
}

func describe(message *primitive.MessageExt) {
	emit("message", map[string]any{
		"topic": message.Topic, "queueId": message.Queue.QueueId, "queueOffset": message.QueueOffset,
		"commitLogOffset": message.CommitLogOffset, "storeSize": message.StoreSize, "msgId": message.MsgId,
		"offsetMsgId": message.OffsetMsgId, "keys": message.GetKeys(), "tags": message.GetTags(),
		"properties": message.GetProperties(), "flag": message.Flag, "sysFlag": message.SysFlag,
		"bornTimestamp": message.BornTimestamp, "storeTimestamp": message.StoreTimestamp,
		"bornHost": message.BornHost, "storeHost": message.StoreHost, "bodyCrc": message.BodyCRC,
		"reconsumeTimes": message.ReconsumeTimes, "preparedTransactionOffset": message.PreparedTransactionOffset,
		"bodySize": len(message.Body), "bodySha256": fmt.Sprintf("%x", sha256.Sum256(message.Body)),
	})
}
