// Serves the probe service with the Thrift library for C++:
//
//   server KIND PORT:TRANSPORT:PROTOCOL...

#include <iostream>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include <thrift/concurrency/ThreadFactory.h>
#include <thrift/concurrency/ThreadManager.h>
#include <thrift/processor/TMultiplexedProcessor.h>
#include <thrift/server/TNonblockingServer.h>
#include <thrift/server/TSimpleServer.h>
#include <thrift/server/TThreadPoolServer.h>
#include <thrift/server/TThreadedServer.h>
#include <thrift/transport/TNonblockingServerSocket.h>
#include <thrift/transport/TServerSocket.h>

#include "Probe.h"
#include "form.h"

using namespace apache::thrift;
using namespace apache::thrift::concurrency;
using namespace apache::thrift::server;
using std::make_shared;
using std::shared_ptr;
using std::string;

const int workers = 8; // more than the connections the proxy and a direct client hold at once

class Handler : public probe::ProbeIf {
public:
  void echo(string& out, const string& text) override { out = text; }
  void echoBinary(string& out, const string& data) override { out = data; }
  void echoTree(probe::Tree& out, const probe::Tree& tree) override { out = tree; }
  void refuse(const string& why) override {
    probe::Refused r;
    r.code = 7;
    r.why = why;
    throw r;
  }
  void ping() override {}
  void fire(const string& key) override {
    std::lock_guard<std::mutex> lock(mu);
    fires[key]++;
  }
  int32_t fired(const string& key) override {
    std::lock_guard<std::mutex> lock(mu);
    return fires[key];
  }

private:
  std::mutex mu;
  std::map<string, int32_t> fires;
};

void serve(const string& kind, int port, const string& transport, const string& protocol) {
  shared_ptr<TProcessor> processor = make_shared<probe::ProbeProcessor>(make_shared<Handler>());
  if (transport == "multiplexed") {
    auto m = make_shared<TMultiplexedProcessor>();
    m->registerProcessor("Probe", processor);
    processor = m;
  }
  auto tf = form::transports(transport);
  auto pf = form::protocols(transport, protocol);
  auto threads = ThreadManager::newSimpleThreadManager(workers);
  if (kind == "threadpool" || kind == "nonblocking") {
    threads->threadFactory(make_shared<ThreadFactory>());
    threads->start();
  }
  shared_ptr<TServer> server;
  if (kind == "nonblocking") {
    auto socket = make_shared<transport::TNonblockingServerSocket>("127.0.0.1", port);
    server = make_shared<TNonblockingServer>(processor, pf, socket, threads);
  } else {
    auto socket = make_shared<transport::TServerSocket>("127.0.0.1", port);
    if (kind == "simple") {
      server = make_shared<TSimpleServer>(processor, socket, tf, pf);
    } else if (kind == "threaded") {
      server = make_shared<TThreadedServer>(processor, socket, tf, pf);
    } else if (kind == "threadpool") {
      server = make_shared<TThreadPoolServer>(processor, socket, tf, pf, threads);
    } else {
      throw std::invalid_argument("unknown kind " + kind);
    }
  }
  if (transport == "header") {
    server->setOutputProtocolFactory(nullptr); // answer through the protocol that read the call
  }
  server->serve();
}

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: server KIND PORT:TRANSPORT:PROTOCOL..." << std::endl;
    return 2;
  }
  std::vector<std::thread> threads;
  for (int i = 2; i < argc; i++) {
    string spec = argv[i];
    size_t a = spec.find(':'), b = spec.find(':', a + 1);
    threads.emplace_back(serve, argv[1], std::stoi(spec.substr(0, a)),
                         spec.substr(a + 1, b - a - 1), spec.substr(b + 1));
  }
  for (auto& t : threads) {
    t.join();
  }
}
