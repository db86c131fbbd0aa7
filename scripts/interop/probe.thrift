// The service that the interop programs call and serve. Strings carry the tag of
// the client's run, so that a reply that went to the wrong client is seen.

namespace java probe
namespace cpp probe

struct Leaf {
  1: i32 id
  2: string name
  3: bool on
  4: double weight
}

struct Tree {
  1: Leaf leaf
  2: map<string, Leaf> named
  3: list<Leaf> leaves
  4: map<i32, list<i64>> numbers
  5: set<i16> few
  6: binary blob
  7: i8 small
}

exception Refused {
  1: i32 code
  2: string why
}

service Probe {
  string echo(1: string text)
  binary echoBinary(1: binary data)
  Tree echoTree(1: Tree tree)
  void refuse(1: string why) throws (1: Refused refused)
  void ping()
  oneway void fire(1: string key)

  // How often the key was fired: oneway calls must come in, and only once.
  i32 fired(1: string key)
}

// What the clients are generated from: no server knows the method it adds.
service Wider extends Probe {
  string absent(1: string text)
}
