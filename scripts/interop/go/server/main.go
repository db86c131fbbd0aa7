// Command server serves the probe service with the Thrift library for Go:
//
//	server simple PORT:TRANSPORT:PROTOCOL...
package main

import (
	"context"
	"log"
	"os"
	"strings"
	"sync"

	"github.com/apache/thrift/lib/go/thrift"

	"interop/form"
	"interop/probe"
)

type handler struct {
	mu    sync.Mutex
	fires map[string]int32
}

func (*handler) Echo(_ context.Context, text string) (string, error)            { return text, nil }
func (*handler) EchoBinary(_ context.Context, data []byte) ([]byte, error)      { return data, nil }
func (*handler) EchoTree(_ context.Context, t *probe.Tree) (*probe.Tree, error) { return t, nil }
func (*handler) Ping(context.Context) error                                     { return nil }

func (*handler) Refuse(_ context.Context, why string) error {
	return &probe.Refused{Code: 7, Why: why}
}

func (h *handler) Fire(_ context.Context, key string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fires[key]++
	return nil
}

func (h *handler) Fired(_ context.Context, key string) (int32, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.fires[key], nil
}

func main() {
	if len(os.Args) < 3 || os.Args[1] != "simple" {
		log.Fatal("usage: server simple PORT:TRANSPORT:PROTOCOL...")
	}
	for _, spec := range os.Args[2:] {
		port, wire, _ := strings.Cut(spec, ":")
		transport, protocol, _ := strings.Cut(wire, ":")
		tf, pf, err := form.Factories(transport, protocol, nil)
		if err != nil {
			log.Fatal(err)
		}
		var processor thrift.TProcessor = probe.NewProbeProcessor(&handler{fires: map[string]int32{}})
		if transport == form.Multiplexed {
			m := thrift.NewTMultiplexedProcessor()
			m.RegisterProcessor("Probe", processor)
			processor = m
		}
		socket, err := thrift.NewTServerSocket("127.0.0.1:" + port)
		if err != nil {
			log.Fatal(err)
		}
		server := thrift.NewTSimpleServer4(processor, socket, tf, pf)
		go func() { log.Fatal(server.Serve()) }()
	}
	select {}
}
