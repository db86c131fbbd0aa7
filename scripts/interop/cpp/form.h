// The ways to put a Thrift message on a connection, for client and server.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>

#include <thrift/protocol/TBinaryProtocol.h>
#include <thrift/protocol/TCompactProtocol.h>
#include <thrift/protocol/THeaderProtocol.h>
#include <thrift/transport/TBufferTransports.h>

namespace form {

namespace protocol = apache::thrift::protocol;
namespace transport = apache::thrift::transport;

inline std::shared_ptr<transport::TTransportFactory> transports(const std::string& name) {
  if (name == "framed" || name == "multiplexed") {
    return std::make_shared<transport::TFramedTransportFactory>();
  }
  if (name == "buffered" || name == "header") { // the header protocol brings its own framing
    return std::make_shared<transport::TBufferedTransportFactory>();
  }
  throw std::invalid_argument("unknown transport " + name);
}

inline std::shared_ptr<protocol::TProtocolFactory> protocols(const std::string& transport,
                                                             const std::string& name) {
  if (transport == "header") { // a server answers in the protocol it was asked in
    return std::make_shared<protocol::THeaderProtocolFactory>();
  }
  if (name == "compact") {
    return std::make_shared<protocol::TCompactProtocolFactory>();
  }
  if (name == "binary" || name == "old") {
    bool strict = name == "binary";
    return std::make_shared<protocol::TBinaryProtocolFactory>(0, 0, strict, strict);
  }
  throw std::invalid_argument("unknown protocol " + name);
}

} // namespace form
