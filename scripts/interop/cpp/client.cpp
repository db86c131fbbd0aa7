// Makes each kind of call with the Thrift library for C++, checks the replies,
// and says "ok NAME" or "fail NAME why" of each:
//
//   client HOST PORT TRANSPORT PROTOCOL TAG

#include <chrono>
#include <functional>
#include <iostream>
#include <thread>
#include <utility>
#include <vector>

#include <thrift/TApplicationException.h>
#include <thrift/protocol/TMultiplexedProtocol.h>
#include <thrift/transport/TSocket.h>

#include "Wider.h"
#include "form.h"

using namespace apache::thrift;
using probe::WiderClient;
using std::make_shared;
using std::shared_ptr;
using std::string;

const int timeout = 15000; // ms; long: the machine may be busy

string host, wire, proto, tag;
int port;

[[noreturn]] void fail(const string& why) {
  throw std::runtime_error(why);
}

// Opens a connection. The client holds it, and closes it with its own end.
shared_ptr<WiderClient> dial() {
  auto socket = make_shared<transport::TSocket>(host, port);
  socket->setConnTimeout(timeout);
  socket->setRecvTimeout(timeout);
  socket->setSendTimeout(timeout);
  socket->open();
  if (wire == "header") {
    auto id = proto == "compact" ? protocol::T_COMPACT_PROTOCOL : protocol::T_BINARY_PROTOCOL;
    return make_shared<WiderClient>(make_shared<protocol::THeaderProtocol>(socket, id));
  }
  auto p = form::protocols(wire, proto)->getProtocol(form::transports(wire)->getTransport(socket));
  if (wire == "multiplexed") {
    p = make_shared<protocol::TMultiplexedProtocol>(p, "Probe");
  }
  return make_shared<WiderClient>(p);
}

void echo(WiderClient& c, const string& text) {
  string got;
  c.echo(got, text);
  if (got != text) {
    fail("echo of " + std::to_string(text.size()) + " bytes: got " + std::to_string(got.size()));
  }
}

void binary(WiderClient& c) {
  string data(1 << 20, 0), got;
  for (size_t i = 0; i < data.size(); i++) {
    data[i] = char(i * 31 + (i >> 8));
  }
  data.replace(0, tag.size(), tag);
  c.echoBinary(got, data);
  if (got != data) {
    fail("echo of a MiB: got " + std::to_string(got.size()) + " other bytes");
  }
}

probe::Leaf leaf(int i) {
  probe::Leaf l;
  l.id = i;
  l.name = tag + " größe " + std::to_string(i);
  l.on = i % 2 == 0;
  l.weight = i / 4.0;
  return l;
}

void tree(WiderClient& c) {
  probe::Tree want, got;
  want.leaf = leaf(-1);
  want.named = {{"", leaf(0)}, {tag, leaf(1)}};
  for (int i = 0; i < 300; i++) {
    want.leaves.push_back(leaf(i));
  }
  want.numbers = {{-1, {}}, {7, {1, -1, int64_t(1) << 40}}};
  want.few = {3, -300};
  want.blob = string("\x00\xff\x80\x01", 4);
  want.small = -8;
  c.echoTree(got, want);
  if (!(got == want)) {
    fail("echo of another tree");
  }
}

void refuse(WiderClient& c) {
  try {
    c.refuse(tag);
  } catch (const probe::Refused& r) {
    if (r.code != 7 || r.why != tag) {
      fail("another refusal: " + r.why);
    }
    return;
  }
  fail("not refused");
}

void unknown(WiderClient& c) {
  string got;
  try {
    c.absent(got, tag);
  } catch (const TApplicationException& e) {
    // The library for Node.js tells the type only in words.
    if (e.getType() > TApplicationException::UNKNOWN_METHOD ||
        string(e.what()).find("absent") == string::npos) {
      fail(string("another exception: ") + e.what());
    }
    return;
  }
  fail("an answer: " + got);
}

// Fires n times. The calls may take effect after the next call has been
// answered, but not twice.
void oneway(WiderClient& c, const string& key, int n) {
  for (int i = 0; i < n; i++) {
    c.fire(key);
  }
  auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout);
  int got;
  while ((got = c.fired(key)) != n && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (got != n) {
    fail("fired " + std::to_string(n) + " times, came in " + std::to_string(got) + " times");
  }
}

int main(int argc, char** argv) {
  if (argc != 6) {
    std::cerr << "usage: client HOST PORT TRANSPORT PROTOCOL TAG" << std::endl;
    return 2;
  }
  host = argv[1], port = std::stoi(argv[2]), wire = argv[3], proto = argv[4], tag = argv[5];
  string text70000;
  for (int i = 0; i < 10000; i++) {
    text70000 += tag;
  }
  const std::vector<std::pair<string, std::function<void(WiderClient&)>>> calls = {
      {"string-0", [](WiderClient& c) { echo(c, ""); }},
      {"string-7", [](WiderClient& c) { echo(c, tag); }},
      {"string-70000", [&](WiderClient& c) { echo(c, text70000); }},
      {"binary", binary},
      {"tree", tree},
      {"exception", refuse},
      {"void", [](WiderClient& c) { c.ping(); }},
      {"oneway", [](WiderClient& c) { oneway(c, tag + " one", 1); }},
      {"oneways", [](WiderClient& c) { oneway(c, tag + " five", 5); }},
      {"unknown", unknown},
      {"last", [](WiderClient& c) { echo(c, tag + " last"); }},
  };
  shared_ptr<WiderClient> client;
  for (const auto& call : calls) {
    try {
      if (!client) {
        client = dial();
      }
      call.second(*client);
      std::cout << "ok " << call.first << std::endl;
    } catch (const std::exception& e) {
      std::cout << "fail " << call.first << " " << e.what() << std::endl;
      client.reset(); // the next call has a connection of its own
    }
  }
}
