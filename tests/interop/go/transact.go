package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// listener does local work that ends as --states says in turn, and answers questions as --answer says.
type listener struct {
	states []string
	answer string
	done   int
}

func state(name string) primitive.LocalTransactionState {
	switch name {
	case "commit":
		return primitive.CommitMessageState
	case "rollback":
		return primitive.RollbackMessageState
	case "unknown":
		return primitive.UnknowState
	}
	panic("no such state: " + name)
}

func (l *listener) ExecuteLocalTransaction(*primitive.Message) primitive.LocalTransactionState {
	l.done++
	return state(l.states[(l.done-1)%len(l.states)])
}

func (l *listener) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	emit("checked", map[string]any{
		"topic":      message.Topic,
		"msgId":      message.MsgId,
		"properties": message.GetProperties(),
	})
	return state(l.answer)
}

// transact sends a numbered series of messages in transactions, then answers questions until a line (or the end) of
// standard input asks it to stop.
func transact(o options) error {
	work := &listener{states: strings.Split(o.text("states", "commit"), ","), answer: o.text("answer", "unknown")}
	client, err := rocketmq.NewTransactionProducer(work,
		producer.WithNameServer([]string{o.text("namesrv", "")}),
		producer.WithGroupName(o.text("group", "")),
		producer.WithInstanceName(strconv.Itoa(os.Getpid())),
		producer.WithSendMsgTimeout(20*time.Second),
	)
	if err != nil {
		return err
	}
	if err := client.Start(); err != nil {
		return err
	}
	first, count := o.number("first", 0), o.number("count", 1)
	for index := first; index < first+count; index++ {
		result, err := client.SendMessageInTransaction(context.Background(), message(o, index, "transact"))
		if err != nil {
			return err
		}
		emit("sent", map[string]any{
			"index": index, "state": fmt.Sprint(result.State), "msgId": result.MsgID, "queueOffset": result.QueueOffset,
		})
	}
	emit("waiting", map[string]any{"count": count})
	select {
	case <-stopAsked():
	case <-time.After(time.Duration(o.number("timeout", 60)) * time.Second):
	}
	if err := client.Shutdown(); err != nil {
		return err
	}
	emit("done", map[string]any{"count": count})
	return nil
}
