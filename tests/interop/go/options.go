package main

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// options holds "command word… --name value…": the little command line that all client programs share.
type options struct {
	command string
	values  map[string]string
}

func parseOptions(arguments []string) (options, error) {
	if len(arguments) == 0 {
		return options{}, fmt.Errorf("no command")
	}
	parsed := options{command: arguments[0], values: map[string]string{}}
	for at := 1; at+1 < len(arguments); at += 2 {
		if len(arguments[at]) < 3 || arguments[at][:2] != "--" {
			return options{}, fmt.Errorf("not an option: %s", arguments[at])
		}
		parsed.values[arguments[at][2:]] = arguments[at+1]
	}
	return parsed, nil
}

func (o options) text(name, otherwise string) string {
	if value, given := o.values[name]; given {
		return value
	}
	return otherwise
}

func (o options) number(name string, otherwise int) int {
	number, err := strconv.Atoi(o.text(name, strconv.Itoa(otherwise)))
	if err != nil {
		panic(fmt.Sprintf("--%s: %v", name, err))
	}
	return number
}

// credentials is the account that signs requests, empty unless one is given.
func (o options) credentials() primitive.Credentials {
	return primitive.Credentials{AccessKey: o.text("access-key", ""), SecretKey: o.text("secret-key", "")}
}

func (o options) properties() map[string]string {
	properties := map[string]string{}
	if err := json.Unmarshal([]byte(o.text("properties", "{}")), &properties); err != nil {
		panic(fmt.Sprintf("--properties: %v", err))
	}
	return properties
}

// trace is the configuration of a message trace, nil unless it is asked for.
func (o options) trace() *primitive.TraceConfig {
	if o.number("trace", 0) == 0 {
		return nil
	}
	return &primitive.TraceConfig{
		GroupName:    o.text("group", "interop-producer"),
		Access:       primitive.Local,
		NamesrvAddrs: []string{o.text("namesrv", "")},
	}
}
