// Command interop sends and receives messages with Apache RocketMQ's Go client and prints JSON lines.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sync"

	"github.com/apache/rocketmq-client-go/v2/rlog"
)

var printing sync.Mutex

// emit prints one event as a JSON line.
func emit(event string, fields map[string]any) {
	fields["event"] = event
	line, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	printing.Lock()
	defer printing.Unlock()
	fmt.Println(string(line))
}

// stopAsked is closed by a line, or the end, of standard input.
func stopAsked() <-chan struct{} {
	asked := make(chan struct{})
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		close(asked)
	}()
	return asked
}

func run(arguments []string) error {
	options, err := parseOptions(arguments)
	if err != nil {
		return err
	}
	switch options.command {
	case "produce":
		return produce(options)
	case "transact":
		return transact(options)
	case "consume":
		return consume(options)
	}
	return fmt.Errorf("no such command: %s", options.command)
}

func main() {
	rlog.SetLogLevel("warn")
	if err := run(os.Args[1:]); err != nil {
		emit("error", map[string]any{"type": fmt.Sprintf("%T", err), "message": err.Error()})
		os.Exit(1)
	}
}
