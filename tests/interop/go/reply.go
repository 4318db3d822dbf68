package main

import (
	"context"
	"fmt"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

func newReplier(namesrv string) (rocketmq.Producer, error) {
	client, err := rocketmq.NewProducer(
		producer.WithNameServer([]string{namesrv}), producer.WithGroupName("interop-replier"))
	if err != nil {
		return nil, err
	}
	return client, client.Start()
}

// replyTo replies to a request with "re: " and its body.
func replyTo(replier rocketmq.Producer, request *primitive.MessageExt) {
	body := append([]byte("re: "), request.Body...)
	reply, err := consumer.CreateReplyMessage(request, body)
	if err == nil {
		reply.Body = body // this version of the client forgets it
		_, err = replier.SendSync(context.Background(), reply)
	}
	if err != nil {
		emit("error", map[string]any{"type": "reply", "message": fmt.Sprint(err)})
	}
}
