//#for i in 0..NX
      x{{i}} = x[x_at + {{i*(THREADS/XU)}}u * p.ldx + step * {{XU}}u];
//#end
//#for i in 0..NW
      w{{i}} = fetch(block{{i}} + step * {{BK/32}}u, h{{i}}, lane);
//#end
